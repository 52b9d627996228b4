"""Write a model for CTranslate2 (`headgates convert`): docs/export.md."""
