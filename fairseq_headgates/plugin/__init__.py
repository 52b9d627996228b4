"""What fairseq calls: options, models, criterions, monitoring, and the task that searches on the device."""
