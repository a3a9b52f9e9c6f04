#!/usr/bin/env bash
# Makes everything of a release: VERSION (v1.2.0), the registry with the path that the images
# are for, and the folder to write to, which is replaced. It builds a clone of the commit, which
# is that of the tag, or HEAD where there is none yet. The same commit, tools and registry give
# the same files.
set -euo pipefail

version=$1 registry=$2 to=$3
number=${version#v}
fail() { echo "release: $*" >&2; exit 1; }
# v2 would be another path of the module.
[[ $version =~ ^v[01]\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$ ]] || fail "VERSION is \"$version\", and must be a tag such as v1.2.0 or v1.2.0-rc.1"
[ -n "$registry" ] || fail "REGISTRY is missing: the registry, and path, that the images are for"
[ -z "$(ls -A "$to" 2> /dev/null)" ] || [ -e "$to/SHA256SUMS" ] || fail "$to has other files, and would be replaced"

repository=$(cd "$(dirname "$0")/.." && pwd)
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
tree=$temporary/tree
new=$temporary/release
mkdir "$new"
commit=$(git -C "$repository" rev-parse --verify --quiet "refs/tags/$version^{commit}" || git -C "$repository" rev-parse HEAD)
git clone --quiet --no-tags --no-checkout "$repository" "$tree"
git -C "$tree" checkout --quiet --detach "$commit"
git -C "$tree" tag "$version" # the only one: Go writes it into the binaries
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make --no-print-directory -C "$tree" dist image \
	ARCHES=amd64,arm64 VERSION="$number" TAG="$version" REGISTRY="$registry" STATIC=bin/static DIST=bin/dist IMAGES=bin/image

# The chart names its version, and its images by their digests.
chart=$temporary/chart/federation
mkdir "$temporary/chart"
cp -rL "$tree/deploy/chart" "$chart"
sed -i "s/^version: .*/version: $number\nappVersion: $number/" "$chart/Chart.yaml"
for component in owner=federationctl dns=coredns; do
	image=${component#*=}
	digest=$(sed -n 's/.*"digest": *"\(sha256:[0-9a-f]*\)".*/\1/p' "$tree/bin/image/$image/index.json")
	sed -i "/^${component%=*}:/,/^[a-z]/ { s,^    repository: .*,    repository: \"$registry/$image\",; s,^    digest: .*,    digest: \"$digest\", }" "$chart/values.yaml"
	grep -qF "digest: \"${digest:?no digest of $image}\"" "$chart/values.yaml" || fail "values.yaml of the chart has no digest of $image"
	cp "$tree/bin/image/$image.tar" "$new/$image-$number-oci.tar"
done
tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$(git -C "$tree" log -1 --format=%ct)" \
	-C "$temporary/chart" -cf - federation | gzip -n9 > "$new/federation-$number.tgz"

cp "$tree"/bin/dist/* "$new"
rm "$new/SHA256SUMS" # of these files alone
(cd "$new" && sha256sum -- * > "$temporary/SHA256SUMS" && mv "$temporary/SHA256SUMS" .)
chmod -R u=rwX,go=rX "$new"
rm -rf "$to"
mkdir -p "$(dirname "$to")"
mv "$new" "$to"
ls -l "$to"
