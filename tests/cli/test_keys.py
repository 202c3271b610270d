"""`gradus keys`: a key is shown once, its hash is kept, and a withdrawn one is gone."""

from gradus.server.config import KeyLimits
from gradus.server.http.keys import Keys, read_keys


def test_a_key_is_printed_once_and_its_hash_is_kept(gradus, tmp_path):
    file = tmp_path / "new" / "keys.yaml"
    options = ["--max-samples", "8", "--max-waiting", "4", "--tokens-per-minute", "1000", "--role", "admin"]
    done = gradus("keys", "add", "alice", "--file", str(file), *options)
    key = done.out.strip()
    assert done.code == 0 and key.startswith("gradus-") and len(key) == len("gradus-") + 43
    assert key not in file.read_text()
    found = Keys(file).find(key)
    assert (found.name, found.role, found.limits) == ("alice", "admin", KeyLimits(8, 4, 1000))
    assert found.first_priority == -1000
    again = gradus("keys", "add", "bob", "--file", str(file)).out.strip()
    assert again != key and Keys(file).find(key).name == "alice" and Keys(file).find(again).role == "client"


def test_keys_are_listed_without_their_hashes_and_removed_by_name(gradus, tmp_path):
    file = str(tmp_path / "keys.yaml")
    for name in ("alice", "bob"):
        assert gradus("keys", "add", name, "--file", file).code == 0
    listed = gradus("keys", "list", "--file", file)
    assert listed.code == 0 and "alice" in listed.out and "bob" in listed.out and "client" in listed.out
    assert not any(key.digest.hex() in listed.out for key in read_keys(tmp_path / "keys.yaml").values())
    assert gradus("keys", "remove", "alice", "--file", file).code == 0
    assert list(read_keys(tmp_path / "keys.yaml")) == ["bob"]


def test_a_keys_best_priority_is_kept_and_listed(gradus, tmp_path):
    file = tmp_path / "keys.yaml"
    assert gradus("keys", "add", "alice", "--file", str(file), "--best-priority", "-7").code == 0
    assert gradus("keys", "add", "bob", "--file", str(file)).code == 0
    assert [key.first_priority for key in read_keys(file).values()] == [-7, 0]
    assert "-7" in gradus("keys", "list", "--file", str(file)).out


def test_mistakes_are_one_line(gradus, tmp_path):
    file = str(tmp_path / "keys.yaml")
    assert gradus("keys", "add", "alice", "--file", file).code == 0
    for arguments, says in (
        (["add", "alice", "--file", file], "has a key 'alice' already"),
        (["add", "Alice B", "--file", file], "a name has 1 to 64"),
        (["add", "bob", "--file", file, "--max-samples", "0"], "max_samples must be"),
        (["add", "bob", "--file", file, "--best-priority", "-1001"], "best_priority must be a whole number between"),
        (["add", "bob", "--file", file, "--role", "king"], "king"),
        (["remove", "carol", "--file", file], "has no key 'carol'; it has alice"),
        (["list", "--file", f"{file}.absent"], "cannot be read"),
        (["add", "bob"], "--file"),
    ):
        done = gradus("keys", *arguments)
        assert (done.code, done.out) == (2, "") and says in done.err, arguments


def test_the_help_teaches_by_examples(gradus):
    assert "gradus keys add alice --file keys.yaml" in gradus("keys", "add", "--help").out
    assert "GRADUS_API_KEY" in gradus("serve", "--help-all").out
