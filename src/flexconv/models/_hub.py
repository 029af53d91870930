"""Networks on the Hugging Face Hub, stored as the files of `save_pretrained`. The client is imported on first use.

We do not use huggingface_hub's own mixin: it would have to be a base class, so that importing flexconv would import it,
and it has its own config.json and weights file, without the SHA-256 by which `from_pretrained` detects damage.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from types import ModuleType

from ..errors import ArgumentError, MissingFileError, MissingPackageError
from ._base import Model
from ._card import ModelCard
from ._pretrained import CONFIG, save_pretrained

_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_REPOSITORY = re.compile(rf"(?P<repo_id>{_PART}/{_PART})(@(?P<revision>[\w./-]+))?", re.ASCII)


def is_hub_name(name: str) -> bool:
    """Whether `name` has the form "user/name" or "user/name@revision" and there is no folder "user"."""
    match = _REPOSITORY.fullmatch(name)
    return match is not None and not Path(match["repo_id"]).parent.exists()


def download(name: str) -> Path:
    """Download the network "user/name" or "user/name@revision", or find it in the cache; return its folder."""
    match = _REPOSITORY.fullmatch(name)
    assert match is not None
    repo_id, revision = match["repo_id"], match["revision"]
    try:
        hub = _hub(f"there is no folder {name}; to look for {repo_id} on the Hugging Face Hub")
    except ImportError as error:
        raise MissingFileError(str(error)) from error
    try:
        folder = hub.snapshot_download(repo_id, revision=revision, allow_patterns=[CONFIG, "*.safetensors"])
    except hub.errors.RepositoryNotFoundError as error:
        raise MissingFileError(
            f"there is no folder {name}, and no repository {repo_id} on the Hugging Face Hub that you can access"
        ) from error
    except hub.errors.RevisionNotFoundError as error:
        raise MissingFileError(f"{repo_id} on the Hugging Face Hub has no revision {revision!r}") from error
    except hub.errors.LocalEntryNotFoundError as error:
        raise MissingFileError(
            f"there is no folder {name}, {repo_id} is not in the cache, and the Hugging Face Hub cannot be reached"
        ) from error
    except (hub.errors.HfHubHTTPError, OSError) as error:
        raise OSError(f"{repo_id} could not be downloaded from the Hugging Face Hub: {_first_line(error)}") from error
    if not (Path(folder) / CONFIG).is_file():
        raise MissingFileError(f"{repo_id} on the Hugging Face Hub holds no {CONFIG}: it is not a flexconv network")
    return Path(folder)


def push_to_hub(
    model: Model, repo_id: str, *, card: ModelCard, private: bool = False, commit_message: str | None = None
) -> str:
    """Upload a network of `flexconv.models` to the Hugging Face Hub and return the address of its page.

        card = ModelCard(data="CIFAR-10", recipe="flexnet7-cifar10", accuracy="91.98 % of 10,000 test images")
        push_to_hub(model, "you/flexnet7-cifar10", card=card)
        from_pretrained("you/flexnet7-cifar10")                 # or "you/flexnet7-cifar10@revision"

    Log in first with `hf auth login`. The repository is created if it does not exist. Existing weights and an existing
    card are replaced in one commit, and nothing is uploaded before both are complete. Needs the extra `hub`.

    Arguments:
        model: the network.
        repo_id: "user/name".
        card: what the network was trained on and how accurate it is; the learned sizes are added.
        private: whether a new repository is private. An existing repository stays as it is.
        commit_message: the message of the commit.

    """
    match = _REPOSITORY.fullmatch(repo_id)
    if match is None or match["revision"]:
        raise ArgumentError(f'repo_id must have the form "user/name"; got {repo_id!r}')
    hub = _hub("push_to_hub needs huggingface_hub")
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder)
        (Path(folder) / "README.md").write_text(card.text(model, repo_id), "utf-8")
        try:
            page = hub.create_repo(repo_id, private=private, exist_ok=True)
            hub.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                commit_message=commit_message or f"{type(model).__name__} of flexconv",
                delete_patterns=["weights-*.safetensors"],
            )
        except (hub.errors.HfHubHTTPError, hub.errors.LocalTokenNotFoundError, OSError) as error:
            raise OSError(f"{repo_id} could not be uploaded to the Hugging Face Hub: {_first_line(error)}") from error
    return str(page)


def _hub(purpose: str) -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise MissingPackageError(purpose, extra="hub") from error
    return huggingface_hub


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
