#!/usr/bin/env bash
# Compares the benchmarks of one package in this tree with those of a commit: the
# two test binaries run in turn, COUNT times, as a machine may become slower or
# faster meanwhile. Everything that it makes is in bin.
#
#	BASE=HEAD~1 PACKAGE=./plugin BENCH=. COUNT=6 BENCHTIME=150ms BENCHSTAT=benchstat test/benchcmp.sh
set -euo pipefail
cd "$(dirname "$0")/.."
tree=bin/benchcmp
remove() { [[ ! -e $tree ]] || git worktree remove --force "$tree"; }
remove
trap remove EXIT
git worktree prune
git worktree add --quiet --detach "$tree" "$BASE"
go -C "$tree" test -c -o "$PWD/bin/base.test" "$PACKAGE"
go test -c -o bin/this.test "$PACKAGE"
rm -f bin/base.txt bin/this.txt

# run FOLDER NAME runs the benchmarks of bin/NAME.test in a folder.
run() {
	(cd "$1" && "$OLDPWD/bin/$2.test" -test.run '^$' -test.bench "$BENCH" -test.benchtime "$BENCHTIME") >>"bin/$2.txt" ||
		{ tail "bin/$2.txt" >&2; exit 1; }
}
for ((i = 1; i <= COUNT; i++)); do
	echo "round $i of $COUNT"
	run "$tree/$PACKAGE" base
	run "$PACKAGE" this
done
"$BENCHSTAT" base=bin/base.txt this=bin/this.txt
