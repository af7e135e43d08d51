#!/bin/sh
# The library and the program compile where the system is not Linux. SQLite's C is left out: it needs the system's headers.
#   scripts/elsewhere.sh        what rustup cannot get is named, and left to the workflow's machines
set -eu
cd "$(dirname "$0")/.."
export LIBSQLITE3_SYS_USE_PKG_CONFIG=1 SQLITE3_LIB_DIR=/
for target in aarch64-apple-darwin x86_64-pc-windows-gnu; do
    if ! [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] && ! rustup target add "$target"; then
        echo "$target: not checked, because it cannot be installed here"
        continue
    fi
    cargo clippy --target "$target" -p onelock --features etcd,metrics,mysql,postgres,redis,sqlite,tls,tower,tracing,zk -- -D warnings
    cargo clippy --target "$target" -p onelock-cli --features etcd,mysql,postgres,zk -- -D warnings
done
