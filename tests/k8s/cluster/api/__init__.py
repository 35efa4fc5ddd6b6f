"""API server: objects over HTTP, for the official client and kubectl.

server        ApiServer: the HTTP server in its thread
requests      RequestHandler: verbs and watches
discovery     discovery endpoints, by kmock
log_streams   LogStreams: the /log subresource
store         Store: objects, versions, finalizers, graceful deletion
defaults      default values on create
validation    schemas and values of built-in kinds
pod_security  admission by the restricted Pod Security Standard
patches       JSON, merge and strategic merge patch
selectors     label and field selectors
rules         injected errors and warnings, RBAC denials
errors        ApiError: error responses as metav1.Status
events        record Events
log_lines     timestamped log lines
quantities    parse resource quantities
"""
