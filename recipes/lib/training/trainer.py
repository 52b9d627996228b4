"""The replacement for fairseq's Trainer. `train.py` assigns it to `fairseq_cli.train.Trainer` in its own process.

Files of fairseq do not change, and no other program is affected. The subclass overrides three methods:

- `get_train_iterator` makes the same batches in every run. fairseq forms batches once in a run, with the number of the
  current epoch as the seed. Stock fairseq-train therefore batches differently after it resumes beyond the first epoch,
  and training does not end with the weights of an uninterrupted run. Here the seed is always that of epoch 1.
- `train_step` asks all processes after every update whether one was told to stop, so that all stop at the same update.
  To stop, it changes options that fairseq reads at every update: end training (--stop-time-hours), skip validation, and
  save checkpoint_last.pt. A validation that is due comes first, so a stop does not change the best checkpoint,
  --patience or the learning rate.
- `set_num_updates` records the number of updates for the log.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from fairseq_cli import train as fairseq_train
from omegaconf import DictConfig

from training.stopping import Stop, on_any_rank


class Trainer(fairseq_train.Trainer):
    """fairseq's Trainer with batches that do not depend on interruptions, and with a stop at any update."""

    def __init__(self, stop: Stop, cfg: DictConfig, *others: Any):
        super().__init__(cfg, *others)
        self._stop = stop
        self._file = Path(cfg.checkpoint.save_dir, "stop") if self.is_data_parallel_master else None
        self._postponed = False

    def train_step(self, samples: list, raise_oom: bool = False) -> Any:
        logged = super().train_step(samples, raise_oom)
        if on_any_rank(self._stop.told or (self._file is not None and self._file.exists())):
            self._stop_soon()
        return logged

    def _stop_soon(self) -> None:
        """Stop at this update, or at the next one if a validation is due."""
        updates, cfg = self.get_num_updates(), self.cfg
        if updates >= (cfg.optimization.max_update or math.inf):
            return  # the last update: after a stop fairseq would make one more
        intervals = (cfg.checkpoint.save_interval_updates, cfg.dataset.validate_interval_updates)
        due = self._batches.end_of_epoch() or any(every > 0 and updates % every == 0 for every in intervals)
        if due and not self._postponed:
            self._postponed = True
            return
        self._stop.agreed = True
        cfg.optimization.stop_time_hours = 1e-9
        cfg.dataset.disable_validation = True
        cfg.checkpoint.no_last_checkpoints = False

    def set_num_updates(self, num_updates: int) -> None:
        super().set_num_updates(num_updates)
        self._stop.updates = num_updates

    def get_train_iterator(self, epoch: int, load_dataset: bool = True, **options: Any) -> Any:
        cached = not options.get("disable_iterator_cache") and not self.cfg.dataset.update_epoch_batch_itr
        if load_dataset and cached:  # as when a checkpoint is loaded; its epoch is set afterwards
            self._batches = super().get_train_iterator(1, **options)
            if self.task.can_reuse_epoch_itr(self.task.dataset(self.cfg.dataset.train_subset)):
                return self._batches
        self._batches = super().get_train_iterator(epoch, load_dataset=load_dataset, **options)
        return self._batches
