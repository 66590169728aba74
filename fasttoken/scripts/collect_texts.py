#!/usr/bin/env python3
"""Collect real text in many scripts for the tokenizer gate. Nothing of it is committed.

usage: collect_texts.py OUT

Takes translations from Debian's language packages (downloaded with apt-get into a temporary
folder, not installed) and code and English prose from this machine. Writes OUT/<name>.txt, at
most some megabytes each, and prints what it found. Where apt-get or a package is missing it says
SKIP and goes on. Needs only the standard library.
"""
import os
import shutil
import struct
import subprocess
import sys
import tempfile

PACKAGES = {
    "arabic": "libreoffice-l10n-ar",
    "hebrew": "libreoffice-l10n-he",
    "thai": "libreoffice-l10n-th",
    "devanagari": "libreoffice-l10n-hi",
    "hangul": "libreoffice-l10n-ko",
    "japanese": "libreoffice-l10n-ja",
    "chinese": "libreoffice-l10n-zh-cn",
    "cyrillic": "libreoffice-l10n-ru",
    "greek": "libreoffice-l10n-el",
    "georgian": "libreoffice-l10n-ka",
    "latin-vi": "libreoffice-l10n-vi",
    "tamil": "libreoffice-l10n-ta",
}
# Name: folders (~ and environment), ends of file names, most bytes.
LOCAL = {
    "rust": (["~/.cargo/registry/src"], (".rs",), 4_000_000),
    "english": (["~/.cargo/registry/src", "/usr/share/doc"], (".md", "README"), 3_000_000),
    "python": (["/usr/lib/python3", "/usr/share/python3"], (".py",), 2_000_000),
}


def translations(path):
    """The translated strings of a .mo file."""
    with open(path, "rb") as file:
        data = file.read()
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(data[:4])
    if order is None:
        return
    count, _, table = struct.unpack_from(order + "3I", data, 8)
    for n in range(1, count):  # the first is the header
        length, at = struct.unpack_from(order + "2I", data, table + 8 * n)
        yield data[at:at + length].decode("utf-8", "ignore").replace("\0", "\n")


def package(name, folder):
    """The folder with the unpacked package, or None."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    try:
        subprocess.run(["apt-get", "download", "-qq", name], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
        deb = next(f for f in os.listdir(folder) if f.startswith(name + "_"))
        target = os.path.join(folder, name)
        subprocess.run(["dpkg-deb", "-x", os.path.join(folder, deb), target], check=True)
        return target
    except (subprocess.SubprocessError, StopIteration):
        return None


def files(folders, ends):
    for folder in folders:
        for root, dirs, names in os.walk(os.path.expanduser(folder)):
            dirs.sort()
            for name in sorted(names):
                if name.endswith(ends):
                    yield os.path.join(root, name)


def write(out, name, parts, limit):
    size = 0
    path = os.path.join(out, name + ".txt")
    with open(path, "w", encoding="utf-8", newline="") as file:
        for part in parts:
            if size >= limit:
                break
            file.write(part + "\n")
            size += len(part.encode()) + 1
    if size == 0:
        os.remove(path)
    return size


def local(folders, ends):
    for path in files(folders, ends):
        try:
            with open(path, encoding="utf-8") as file:
                yield file.read()
        except (OSError, UnicodeDecodeError):
            continue


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, package_name in PACKAGES.items():
            unpacked = package(package_name, folder)
            if unpacked is None:
                print(f"SKIP {name}: package {package_name} cannot be had; apt-get update may help")
                continue
            parts = (text for path in files([unpacked], (".mo",)) for text in translations(path))
            size = write(out, name, parts, 4_000_000)
            total += size
            print(f"{name}: {size} bytes from {package_name}", flush=True)
            shutil.rmtree(unpacked)
    for name, (folders, ends, limit) in LOCAL.items():
        size = write(out, name, local(folders, ends), limit)
        total += size
        print(f"{name}: {size} bytes" if size else f"SKIP {name}: nothing in {folders}")
    print(f"all: {total} bytes in {out}")


if __name__ == "__main__":
    main()
