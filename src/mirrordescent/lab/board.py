"""A run's evaluations as TensorBoard event files, for those who ask for them."""

from __future__ import annotations

from mirrordescent.lab.records import Record, Row, RunError


class Board:
    """Writes a run's evaluations for TensorBoard; when a run continues, its earlier ones are written anew."""

    def __init__(self, record: Record) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RunError("TensorBoard is not installed: pip install 'mirrordescent[tensorboard]'") from None
        self.writer = SummaryWriter(str(record.folder / "tensorboard"), purge_step=0)
        for row in record.rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Write one evaluation."""
        for name, value in row.items():
            if name != "epoch" and value is not None:
                self.writer.add_scalar(name, value, row["epoch"])

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()
