#!/bin/bash
# Installs reread and the torch of a kind of GPU, in the build of an image. Run in the folder that holds setup.py, with
# GPU, TORCH_INDEX and PACKAGE_INDEX set (README.md in this folder).
set -euo pipefail

stop() {
    echo "reread: $1" >&2
    exit 2
}

case "${GPU:-}" in
    v100) torch="torch==2.10.0+cu126" ;; # CUDA 13 has no Volta
    newer) torch="torch==2.13.0" ;;
    *) stop "give the build argument GPU, which is v100 or newer" ;;
esac
[ -n "${TORCH_INDEX:-}" ] || stop "give the build argument TORCH_INDEX, the address of a package index that has $torch"
[ -n "${PACKAGE_INDEX:-}" ] || stop "give the build argument PACKAGE_INDEX, the address of a package index for the rest"

packages=(python -m pip install --no-cache-dir --index-url "$PACKAGE_INDEX" --constraint constraints.txt)
"${packages[@]}" --upgrade pip setuptools wheel
# torch brings CUDA's libraries, from its own index
python -m pip install --no-cache-dir --index-url "$TORCH_INDEX" "$torch"
"${packages[@]}" --build-constraint constraints.txt ".[train]"

# A torch for CPU, or another one that the last step put in its place, is found here and not on the cluster.
installed="torch==$(python -c 'import torch; print(torch.__version__, "for CUDA", torch.version.cuda)')"
case "$installed" in
    *None) stop "$torch came from TORCH_INDEX as a build for CPU; give an index that has builds for CUDA" ;;
    "$torch "* | "$torch+"*) reread --version ;;
    *) stop "$installed is installed, not $torch" ;;
esac
