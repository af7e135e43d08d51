#!/bin/sh
# Builds the program as static archives: target/dist/onelock-VERSION-TARGET.tar.gz with a checksum each.
#   scripts/dist.sh [TARGET…]    the default: x86_64-unknown-linux-musl aarch64-unknown-linux-musl, those that rustup has
# FEATURES names the features of the program beside its default; the program that counts what it allocates (`bench`) is no product.
set -eu
cd "$(dirname "$0")/.."
features=${FEATURES:-check,mysql,postgres,tls-ring,zk-tls}
version=$(cargo pkgid -p onelock-cli | sed 's/.*[#@]//')
out=target/dist
mkdir -p "$out"
[ $# -gt 0 ] || set -- x86_64-unknown-linux-musl aarch64-unknown-linux-musl
sysroot=$(rustc --print sysroot)
built=
for target in "$@"; do
    if [ ! -d "$sysroot/lib/rustlib/$target" ]; then
        echo "$target: not installed (rustup target add $target)" >&2
        continue
    fi
    # The C parts (SQLite, cryptography) need a compiler for the target: musl-gcc, or one named by CC_<target>.
    cargo build --release --locked -p onelock-cli --target "$target" --features "$features"
    folder=onelock-$version-$target
    rm -rf "${out:?}/$folder"
    mkdir -p "$out/$folder"
    cp "target/$target/release/onelock" cli/README.md LICENSE-APACHE LICENSE-MIT CHANGELOG.md "$out/$folder/"
    tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner -czf "$out/$folder.tar.gz" "$folder"
    (cd "$out" && sha256sum "$folder.tar.gz" >"$folder.tar.gz.sha256")
    rm -rf "${out:?}/$folder"
    built="$built $target"
    ls -l "$out/$folder.tar.gz"
done
[ -n "$built" ] || { echo "nothing was built" >&2; exit 1; }
