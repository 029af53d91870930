"""The Hugging Face Hub without a connection: its functions are replaced by ones that use a local folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flexconv import create_model, from_pretrained
from flexconv.models import ModelCard, push_to_hub

huggingface_hub = pytest.importorskip("huggingface_hub")
errors = pytest.importorskip("huggingface_hub.errors")

CARD = ModelCard(
    data="digits of scikit-learn | 8 × 8",
    recipe="flexconv train digits",
    accuracy="98.6 % of 360 test images",
    licence="cc-by-4.0",
)


def small(**changes):
    torch.manual_seed(0)
    arguments = {"in_channels": 1, "num_classes": 3, "image_size": 8, "widths": [4]} | changes
    return create_model("flexnet3", **arguments).eval()


def answered(kind, message):
    """An error of the hub, whose constructor would need an HTTP response."""
    error = kind.__new__(kind)
    OSError.__init__(error, message)
    return error


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder whose subfolders are repositories, and the list of calls to the hub."""
    root = tmp_path / "hub"
    root.mkdir()
    calls = []

    def create_repo(repo_id, *, private, exist_ok):
        assert exist_ok
        calls.append(("create_repo", repo_id, private))
        (root / repo_id).mkdir(parents=True, exist_ok=True)
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(*, repo_id, folder_path, commit_message, delete_patterns):
        calls.append(("upload_folder", repo_id, commit_message))
        for pattern in delete_patterns:
            for path in (root / repo_id).glob(pattern):
                path.unlink()
        shutil.copytree(folder_path, root / repo_id, dirs_exist_ok=True)

    def snapshot_download(repo_id, *, revision, allow_patterns):
        calls.append(("snapshot_download", repo_id, revision))
        if not (root / repo_id).is_dir():
            raise answered(errors.RepositoryNotFoundError, "404 Client Error")
        copy = tmp_path / "cache" / repo_id
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir(parents=True)
        for pattern in allow_patterns:
            for path in (root / repo_id).glob(pattern):
                shutil.copy(path, copy)
        return str(copy)

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for replacement in (create_repo, upload_folder, snapshot_download):
        monkeypatch.setattr(huggingface_hub, replacement.__name__, replacement)
    monkeypatch.chdir(tmp_path)
    return root, calls


def test_push_and_load(hub):
    root, calls = hub
    model, x = small(), torch.randn(2, 1, 8, 8)
    assert push_to_hub(model, "someone/digits", card=CARD, private=True) == "https://huggingface.co/someone/digits"
    torch.testing.assert_close(from_pretrained("someone/digits")(x), model(x), rtol=0, atol=0)
    from_pretrained("someone/digits@v1.0")
    assert calls == [
        ("create_repo", "someone/digits", True),
        ("upload_folder", "someone/digits", "FlexNet of flexconv"),
        ("snapshot_download", "someone/digits", None),
        ("snapshot_download", "someone/digits", "v1.0"),
    ]
    files = sorted(path.suffix for path in (root / "someone/digits").iterdir())
    assert files == [".json", ".md", ".safetensors"]


def test_second_push_replaces_the_weights(hub):
    root, _ = hub
    push_to_hub(small(), "someone/digits", card=CARD)
    other = small(num_classes=5)
    push_to_hub(other, "someone/digits", card=CARD, commit_message="five classes")
    assert len(list((root / "someone/digits").glob("*.safetensors"))) == 1
    assert from_pretrained("someone/digits").num_classes == 5


def test_card_describes_the_network(hub):
    root, _ = hub
    model = small()
    push_to_hub(model, "someone/digits", card=CARD)
    text = (root / "someone/digits/README.md").read_text("utf-8")
    head, _, body = text.removeprefix("---\n").partition("---\n")
    assert 'license: "cc-by-4.0"' in head
    assert "library_name: flexconv" in head
    assert "# digits\n" in body
    assert r"| data | digits of scikit-learn \| 8 × 8 |" in body
    assert "| accuracy | 98.6 % of 360 test images |" in body
    assert "| recipe | flexconv train digits |" in body
    assert 'from_pretrained("someone/digits")  # [batch, 1, height, width] → logits [batch, 3]' in body
    rows = [line for line in body.splitlines() if line.startswith(("| stem", "| blocks"))]
    assert rows == [f"| {name} | 7×7 | 9×9 |" for name in ("stem", "blocks.0.conv1", "blocks.0.conv2")]


def test_card_of_a_network_without_flexconv_layers():
    model = create_model("flexnet7_conv3", in_channels=3, num_classes=10, widths=[4])
    assert "no FlexConv layers" in CARD.text(model, "someone/plain")


@pytest.mark.parametrize(
    "repo_id", ["digits", "a/b/c", "someone/digits@v1", "../digits", "someone/", "some one/digits"]
)
def test_push_rejects_wrong_repository_names(repo_id, hub):
    with pytest.raises(ValueError, match=r'repo_id must have the form "user/name"'):
        push_to_hub(small(), repo_id, card=CARD)
    assert hub[1] == []


def test_push_rejects_other_modules(hub):
    with pytest.raises(TypeError, match=r"saves the networks of flexconv\.models"):
        push_to_hub(torch.nn.Linear(2, 2), "someone/digits", card=CARD)  # type: ignore[arg-type]
    assert hub[1] == []


def test_missing_repository(hub):
    with pytest.raises(FileNotFoundError, match="someone/nothing on the Hugging Face Hub"):
        from_pretrained("someone/nothing")


def test_repository_that_is_not_a_flexconv_network(hub):
    root, _ = hub
    (root / "someone/else").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"someone/else on the Hugging Face Hub holds no config\.json"):
        from_pretrained("someone/else")
    (root / "someone/else/config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="not written by flexconv"):
        from_pretrained("someone/else")


def test_detects_damaged_downloads(hub):
    root, _ = hub
    push_to_hub(small(), "someone/digits", card=CARD)
    (weights,) = (root / "someone/digits").glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ValueError, match="damaged"):
        from_pretrained("someone/digits")


@pytest.mark.parametrize(
    ("kind", "raised", "message"),
    [
        ("RevisionNotFoundError", FileNotFoundError, "someone/digits on the Hugging Face Hub has no revision 'v9'"),
        ("LocalEntryNotFoundError", FileNotFoundError, "not in the cache, and the Hugging Face Hub cannot be reached"),
        ("HfHubHTTPError", OSError, "could not be downloaded from the Hugging Face Hub: first line$"),
    ],
)
def test_download_errors_are_one_line(kind, raised, message, hub, monkeypatch):
    def fail(*arguments, **options):
        raise answered(getattr(errors, kind), "first line\n\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(raised, match=message):
        from_pretrained("someone/digits@v9")


def test_upload_errors_are_one_line(hub, monkeypatch):
    def fail(*arguments, **options):
        raise answered(errors.HfHubHTTPError, "401 Client Error: log in\nmore")

    monkeypatch.setattr(huggingface_hub, "create_repo", fail)
    with pytest.raises(OSError, match=r"someone/digits could not be uploaded .*: 401 Client Error: log in$"):
        push_to_hub(small(), "someone/digits", card=CARD)


def test_paths_are_not_looked_up_on_the_hub(hub):
    _, calls = hub
    Path("runs").mkdir()
    for missing in ("runs/typo", "./runs/x", Path("someone/digits"), "/someone/digits", "no-such-name"):
        with pytest.raises((FileNotFoundError, ValueError)):
            from_pretrained(missing)
    assert calls == []


def test_missing_extra_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError, match=r'no folder someone/digits; .*: pip install "\.\[hub\]"'):
        from_pretrained("someone/digits")
    with pytest.raises(ImportError, match=r'push_to_hub needs huggingface_hub: pip install "\.\[hub\]"'):
        push_to_hub(small(), "someone/digits", card=CARD)


def test_offline_without_cache(tmp_path):
    program = (
        "import flexconv, sys\n"
        "assert 'huggingface_hub' not in sys.modules\n"
        "try:\n"
        "    flexconv.from_pretrained('someone/digits')\n"
        "except FileNotFoundError as error:\n"
        "    print(error)\n"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path), "PATH": ""}
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "someone/digits is not in the cache" in result.stdout
