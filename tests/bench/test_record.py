import json

import pytest

from muser.bench import record as records
from muser.bench.digests import file_digest, token_digest, workload_digest
from muser.errors import DeviceError, DeviceLost, FormatError, LimitError, StorageError

RECORD = {"schema": records.SCHEMA, "kind": "decode", "at": "2026-01-31T12:00:00Z", "runs": [1]}


def test_a_record_is_written_once_under_its_time_and_hash(tmp_path):
    path = records.write(RECORD, tmp_path / "new")
    assert path.name.startswith("20260131T120000Z-decode-")
    assert records.read(path) == RECORD
    with pytest.raises(StorageError, match="never replaced"):
        records.write(RECORD, tmp_path / "new")
    other = records.write({**RECORD, "runs": [2]}, tmp_path / "new")
    assert [found for _, found in records.read_all(tmp_path / "new")] == [
        records.read(one) for one in sorted([path, other])
    ]
    assert len(list((tmp_path / "new").iterdir())) == 2  # no drafts are left


@pytest.mark.parametrize("kind", [DeviceError, DeviceLost, LimitError])
def test_a_failed_run_fails_again_as_what_it_was(kind):
    problem = kind("It is so.", "Do that.")
    with pytest.raises(kind) as raised:
        records.require({**RECORD, "failed": records.failure(problem, {})})
    assert type(raised.value) is kind
    assert (raised.value.sentence, raised.value.remedy) == ("It is so.", "Do that.")


def test_an_edited_record_is_refused(tmp_path):
    path = records.write(RECORD, tmp_path)
    path.write_text(path.read_text().replace("1\n", "2\n"))
    with pytest.raises(FormatError, match="is not what its name says"):
        records.read(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 1, "kind": "x", "at": 3}', "[" * 9999]
)
def test_what_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(FormatError):
        records.read(path)


def test_numbers_that_are_none_are_not_written():
    with pytest.raises(ValueError, match="JSON"):
        records.canonical({"x": float("nan")})
    assert records.canonical({"b": 1, "a": "é"}) == b'{\n "a": "\\u00e9",\n "b": 1\n}\n'


def test_digests_are_those_of_the_documents(tmp_path):
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert token_digest([]) == empty
    # printf '\1\0\0\0\0\1\0\0' | sha256sum
    assert token_digest([1, 256]) == TOKENS
    assert workload_digest([[1]], [[256]]) == WORKLOAD
    assert workload_digest([[]], [[1, 256]]) != workload_digest([[1]], [[256]])
    path = tmp_path / "file"
    path.write_bytes(b"")
    assert file_digest(path) == empty
    assert json.loads(records.canonical(RECORD)) == RECORD


TOKENS = "242045e2f1bb37769b514f182fd91b3d215324cb57f187cced1e9c62921dbac3"
WORKLOAD = "849902181d80cabc50da596a266968c7020113a23544ddbed7f7ed9d16105897"
