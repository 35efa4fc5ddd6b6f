"""Entry points of other distributions are found; importlib.metadata is used only where there are some."""

from __future__ import annotations

import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from importlib.metadata import MetadataPathFinder
from pathlib import Path
from zipfile import ZipFile

import pytest

from dist_train import registry

GROUP = "dist_train.launchers"
TEXT = f"[console_scripts]\nx = a:b\n[{GROUP}]\npretend = pretend_launcher:LAUNCHER\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of distributions, the only one of sys.path; finders as without other packages' own."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [BuiltinImporter, FrozenImporter, PathFinder])
    # The package importlib_metadata takes it away when it is imported, and brings a finder of its own.
    monkeypatch.setattr(
        PathFinder, "find_distributions", MetadataPathFinder.find_distributions, raising=False
    )
    return tmp_path


def distribution(site: Path, name: str, text: str) -> None:
    folder = site / name
    folder.mkdir()
    (folder / "METADATA").write_text("Name: pretend\nVersion: 1\n")
    (folder / "PKG-INFO").write_text("Name: pretend\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(text)


@pytest.mark.parametrize("suffix", ["dist-info", "egg-info"])
def test_an_entry_point_of_a_folder_is_found(site: Path, suffix: str) -> None:
    distribution(site, f"pretend-1.{suffix}", TEXT)
    assert [entry.name for entry in registry.entry_points(GROUP)] == ["pretend"]


def test_an_entry_point_of_an_archive_is_found(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ZipFile(site / "pretend.zip", "w") as archive:
        archive.writestr("pretend-1.dist-info/METADATA", "Name: pretend\nVersion: 1\n")
        archive.writestr("pretend-1.dist-info/entry_points.txt", TEXT)
    monkeypatch.setattr(sys, "path", [str(site / "pretend.zip")])
    assert [entry.name for entry in registry.entry_points(GROUP)] == ["pretend"]


def test_an_entry_point_of_a_finder_is_found(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import DistributionFinder

    other = site / "elsewhere"
    other.mkdir()
    distribution(other, "pretend-1.dist-info", TEXT)

    class Finder(DistributionFinder):
        def find_spec(self, *_: object) -> None:
            return None

        def find_distributions(self, context: DistributionFinder.Context | None = None):  # type: ignore[no-untyped-def]
            return MetadataPathFinder.find_distributions(DistributionFinder.Context(path=[str(other)]))

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert [entry.name for entry in registry.entry_points(GROUP)] == ["pretend"]


def test_the_metadata_are_not_read_where_no_distribution_has_the_group(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: pytest.fail("read"))
    distribution(site, "other-1.dist-info", "[console_scripts]\nx = a:b\n")
    monkeypatch.setattr(sys, "path", ["", str(site), str(site / "absent.zip")])
    assert list(registry.entry_points(GROUP)) == []


def test_a_companion_is_imported_without_its_adapter() -> None:
    found = registry.companion("launchers", "slurm", "option_rows")
    assert found is not None
    assert found.__name__ == "launchers._slurm.slurm_option_rows"
    assert registry.companion("launchers", "slurm", "nothing") is None
    with pytest.raises(KeyError):
        registry.companion("launchers", "absent", "option_rows")
