"""The sections of an experiment file as pydantic models."""
