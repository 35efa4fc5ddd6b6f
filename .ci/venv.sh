#!/bin/sh
# venv.sh PYTHON VENV run|dev|docs: create or update the virtual environment.
#
# A stamp records the checkout's path and the checksums of the requirements, so that an unchanged checkout
# installs nothing and a moved one installs again. An unfinished venv of ours is removed.
set -eu
cd "$(dirname "$0")/.."
python=$1 venv=$2 stage=$3
log=$venv/install.log
# pip itself refuses to install outside a virtual environment.
export PIP_REQUIRE_VIRTUALENV=1

say() { echo "[make] $*" >&2; }
fail() { say "$@"; exit 1; }
wanted() { pwd; cksum pyproject.toml constraints.txt; }
is_done() { [ -f "$venv/.stamp-$1" ] && [ "$(cat "$venv/.stamp-$1")" = "$(wanted)" ]; }

# Without its pyvenv.cfg a venv's python still runs: as the system's, with the system's packages.
works() {
    [ -f "$venv/pyvenv.cfg" ] && "$venv/bin/python" - "$venv" <<'EOF' >/dev/null 2>&1
import os, sys, pip
sys.exit(not (sys.prefix != sys.base_prefix and os.path.samefile(sys.prefix, sys.argv[1])))
EOF
}

check_python() {
    if ! command -v "$python" >/dev/null 2>&1; then
        fail "no interpreter is called '$python': install Python 3.11 or newer (Debian: apt-get install -y python3 python3-venv)"
    fi
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        say "$python is $("$python" --version 2>&1 | head -n 1); dist-train needs Python 3.11 or newer"
        for other in python3.14 python3.13 python3.12 python3.11; do
            if "$other" -c 'import venv' >/dev/null 2>&1; then fail "this machine has one: make PYTHON=$other"; fi
        done
        fail "install one (Debian 12: apt-get install -y python3 python3-venv), then: make PYTHON=python3.11"
    fi
}

make_venv() {
    mkdir -p "$venv"
    : >"$venv/.begun"
    if "$python" -m venv "$venv" >"$log" 2>&1; then return; fi
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        install_venv_package
        if "$python" -m venv --clear "$venv" >/tmp/dist-train-venv.$$ 2>&1; then
            rm -f /tmp/dist-train-venv.$$
            : >"$venv/.begun"
            return
        fi
        cat /tmp/dist-train-venv.$$ >&2
        rm -f /tmp/dist-train-venv.$$
    else
        cat "$log" >&2
    fi
    fail "$python -m venv failed; see its output above"
}

install_venv_package() {
    package=python3-venv
    # Debian names the package of any other interpreter after its version.
    if [ "$(command -v "$python")" != "$(command -v python3)" ]; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        fail "this Python has no venv module. On Debian and Ubuntu: sudo apt-get install -y $package"
    fi
    say "installing the Debian package $package"
    export DEBIAN_FRONTEND=noninteractive
    if ! apt-get install -y -qq "$package" >"$log" 2>&1; then
        if ! { apt-get update -qq && apt-get install -y -qq "$package"; } >"$log" 2>&1; then
            cat "$log" >&2
            fail "apt-get install -y $package failed; see its output above"
        fi
    fi
}

# install STAGE WHAT SENTENCE
install() {
    if is_done "$1"; then return; fi
    works || fail "$venv is no working virtual environment; remove it and run make again"
    say "$3"
    rm -f "$venv/.stamp-$1"
    : >"$venv/.begun"
    if ! "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-input \
        -c constraints.txt -e "$2" >"$log" 2>&1; then
        cat "$log" >&2
        fail "the installation into $venv failed; see pip's output above. The next make starts over"
    fi
    wanted >"$venv/.stamp-$1.new"
    mv "$venv/.stamp-$1.new" "$venv/.stamp-$1"
    rm -f "$venv/.begun"
}

if is_done run && { [ "$stage" = run ] || is_done "$stage"; } && [ ! -e "$venv/.begun" ]; then exit 0; fi
check_python
if [ -e "$venv" ]; then
    moved=false
    if [ -f "$venv/.stamp-run" ] && [ "$(head -n 1 "$venv/.stamp-run")" != "$(pwd)" ]; then moved=true; fi
    # A working venv that was made by hand is used; only ours, or one without pip, is removed.
    if [ -e "$venv/.begun" ] || $moved || ! works; then
        if $moved; then say "removing $venv: it was made for another path"; else say "removing the unfinished $venv"; fi
        # bin first: if this is interrupted, the rest has no pip and is removed next time.
        rm -rf "$venv/bin" "$venv"
    fi
fi
if [ ! -e "$venv" ]; then make_venv; fi
install run . "installing dist-train into $venv (PyTorch is large: some minutes the first time)"
case $stage in
dev) install dev '.[dev]' "installing the development tools into $venv (about a minute)" ;;
docs) install docs '.[docs]' "installing Sphinx into $venv (some seconds)" ;;
esac
