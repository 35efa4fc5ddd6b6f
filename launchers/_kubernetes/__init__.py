"""What launchers/kubernetes.py is made of: options, the TorchX app, the manifests, the client."""
