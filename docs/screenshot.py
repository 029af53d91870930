"""The picture of the explorer in docs/explorer.md: `python docs/screenshot.py`. Needs Chromium."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from flexconv.cli import run

IMAGES = Path(__file__).parent / "images"
NETWORK = "flexnet3-digits"
WIDTH, HEIGHT = 1200, 1130  # of the window


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("Chromium is not installed")
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "page.html", Path(folder) / "shot.png"
        run(["explore", NETWORK, "--out", str(page)])
        for theme in ("light", "dark"):
            flags = f"--headless=new --no-sandbox --disable-gpu --hide-scrollbars --window-size={WIDTH},{HEIGHT}"
            options = [*flags.split(), f"--user-data-dir={folder}/{theme}", f"--screenshot={shot}"]
            address = f"{page.as_uri()}#theme={theme}"
            command = [browser, *options, "--force-device-scale-factor=2", "--virtual-time-budget=5000", address]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            colors = Image.open(shot).convert("RGB").quantize(128, dither=Image.Dither.NONE)
            colors.save(IMAGES / f"explorer-{theme}.png", optimize=True)


if __name__ == "__main__":
    main()
