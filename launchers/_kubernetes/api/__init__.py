"""Client of the Kubernetes API server, over the official client's ApiClient.

kinds           the API kinds that a job consists of, and their paths
api_errors      responses that are no success, as our errors with a hint
lasting_refusal  whether a 403 is one of the role, or of a moment
line_stream     a response that is read line by line, and that another thread can end
connection      the kubeconfig's context, or the pod's service account
http_transport  one JSON call or stream; warnings, server clock, conversion of errors
cluster         one namespace: create, get, find, delete, patch, watch, log
"""
