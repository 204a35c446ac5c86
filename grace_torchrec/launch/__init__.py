"""Launch: each stage as a TorchX job, ``torchx run grace.<name>``; what a job was given travels along.

Read in this order: components (what ``torchx run`` finds); jobs (a sub-command as a job); provenance
(checksums of plan and profile); local_files (a job on this machine finds what it reads); submit (from Python); torchx_modules (imported when needed).
"""
