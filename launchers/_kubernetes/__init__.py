"""What launchers/kubernetes.py is made of; each folder may import only those above its own.

manifest/   from options to the objects that are submitted: pure, needs no cluster
    options, names, quantities, size   what was asked, what it is called, how big it is
    app, container, pod, patch         the TorchX app, the one pod template, --pod-patch
    job, jobset, volcano, trainjob     the four kinds; beside: the objects that go with each
    render, check, summary             the bytes; what is refused before them; what is said of them
api/        the API server: connection (who we are to it), cluster (what it is asked),
            kinds, refusals, streams
state/      what a run is doing: sight (what was read), standing, waiting, ending (what that means),
            pods, reasons, verdict, news (events), record (what the run directory remembers of it)
runner/     TorchX: session (its Runner), scheduler (ours, for plain clusters), volcano_scheduler,
            submission, queues, removal, logs
follow/     `launch` and `logs -f`: news and lines until the run ends
terminal    words to the person at the terminal
"""
