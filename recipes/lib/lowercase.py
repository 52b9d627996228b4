#!/usr/bin/env python3
"""Lowercase UTF-8 text from stdin to stdout, in any locale."""

import sys

sys.stdin.reconfigure(encoding="utf-8", newline="\n")
sys.stdout.reconfigure(encoding="utf-8", newline="\n")
for line in sys.stdin:
    sys.stdout.write(line.lower())
