"""Locations that neither pyarrow nor fsspec can open."""

import pytest

from orchestrator.errors import UsageError
from orchestrator.storage.remote_filesystem import open_filesystem


@pytest.mark.parametrize(
    "url", ["s3://AKIA:hunter2%zz@bucket/runs", "nowhere://AKIA:hunter2@bucket/runs?token=hunter2"]
)
def test_error_for_a_bad_location_hides_credentials(url: str) -> None:
    with pytest.raises(UsageError, match="must be a folder or a URL") as told:
        open_filesystem(url)
    assert "hunter2" not in str(told.value)
    assert "AKIA" not in str(told.value)
    assert told.value.__suppress_context__
