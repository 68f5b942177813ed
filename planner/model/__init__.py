"""Models: `ModelSpec` and one importer per family of Hugging Face configs."""
