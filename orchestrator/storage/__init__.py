"""Files in a folder or under a URL, read and written the same way. Imports neither ray nor
torch."""

from orchestrator.storage.file_states import FileState
from orchestrator.storage.location import without_credentials
from orchestrator.storage.storage import Storage

__all__ = ["FileState", "Storage", "without_credentials"]
