#!/usr/bin/env bash
# Everything that needs a GPU, in one go: `cargo xtask gpu` makes a folder of this, the wheel, the programs beside it and
# the tests; copy it to a machine with a GPU, PyTorch and transformers, and run it there.
#
#     bash run.sh [NAME]...      only these: tests record watch prefetch batch_size folklore holders shim fit_truth
#                                fit_workspaces
#
# Logs go to $OUT (default: out), the table of what ran comes last. Exits with 1 if anything failed.
set -u
cd "$(dirname "$0")"
out=${OUT:-$PWD/out}
mkdir -p "$out"
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(tests record watch prefetch batch_size folklore holders shim fit_truth fit_workspaces)
export PYTHONUNBUFFERED=1

# The wheel brings nothing and needs nothing; site-packages, as its .pth file only works there.
python3 -m venv --system-site-packages venv >/dev/null 2>&1 && python=$PWD/venv/bin/python || python=python3
"$python" -c "import torch" 2>/dev/null || python=python3
"$python" -m pip install --quiet --no-index --no-deps --force-reinstall ./*.whl || exit 2

declare -a table
failed=0
for name in "${names[@]}"; do
    case $name in
        tests) command=("$python" -m pytest -q -p no:cacheprovider -c pyproject.toml tests/python/gpu) ;;
        record) command=("$python" gpu/record.py leaks "$out/recordings") ;;
        shim) command=("$python" gpu/shim.py "$out/shim.json") ;;
        fit_truth) command=("$python" -W ignore gpu/fit_truth.py "$out/fit_truth.jsonl") ;;
        fit_workspaces) command=("$python" -W ignore gpu/fit_workspaces.py "$out") ;;
        *) command=("$python" "gpu/$name.py") ;;
    esac
    begin=$SECONDS
    timeout "${LIMIT:-580}" "${command[@]}" >"$out/$name.txt" 2>"$out/$name.err"
    code=$?
    [ $code = 0 ] || failed=1
    echo "== $name"
    cat "$out/$name.txt"
    [ $code = 0 ] || tail -15 "$out/$name.err"
    table+=("$(printf '%-12s %-10s %4d s' "$name" "$([ $code = 0 ] && echo ok || echo "failed ($code)")" $((SECONDS - begin)))")
done
echo
printf '%s\n' "${table[@]}" | tee "$out/table.txt"
exit $failed
