"""grace-torchrec: stored partial sums, placement and stream schedules for TorchRec."""
