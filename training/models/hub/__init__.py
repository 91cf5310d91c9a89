"""Encoders of transformers, trained as themselves: its classes, configurations and names, without code of ours."""
