"""Launch: each stage as a TorchX job, ``torchx run grace.<name>``; what a job was given travels along."""
