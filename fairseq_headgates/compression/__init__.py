"""Remove heads and neurons under one budget, without training (`headgates compress`): docs/compress.md."""
