#!/bin/sh
# Fetches the server of MySQL itself, which Debian has in unstable only, into a folder of its own, without installing
# anything, and prints how to run the MySQL store's tests on it.
#   sh scripts/mysql.sh [FOLDER]
set -eu
folder=${1:-/tmp/onelock-mysql}
root=$folder/root
program=$folder/mysqld

if [ ! -x "$program" ]; then
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" "$root"
    : >"$folder/status"
    archive=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' | head -n 1)
    [ -n "$archive" ] || { echo "apt knows no archive of Debian (apt-get update?)" >&2; exit 1; }
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys] $archive unstable main" >"$folder/sources.list"
    # As if nothing were installed: all that the server needs comes along, its C library too.
    fetch() {
        apt-get -qq -o Dir::Etc::SourceList="$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null \
            -o Dir::State::Lists="$folder/lists" -o Dir::State::Status="$folder/status" -o Dir::Cache="$folder/cache" \
            -o APT::Sandbox::User=root "$@" >&2
    }
    fetch update
    fetch install --download-only --yes --no-install-recommends mysql-server-core
    for package in "$folder"/cache/archives/*.deb; do
        dpkg-deb --extract "$package" "$root"
    done
    loader=$(find "$root" -name 'ld-linux-*.so*' | head -n 1)
    libraries=$(dirname "$loader")
    cat >"$program" <<END
#!/bin/sh
exec $loader --library-path $libraries:$root/usr/lib/mysql/private $root/usr/sbin/mysqld "\$@" \\
    --secure-file-priv=NULL --lc-messages-dir=$root/usr/share/mysql --plugin-dir=$root/usr/lib/mysql/plugin
END
    chmod +x "$program"
fi
"$program" --version
echo "ONELOCK_MYSQLD=$program cargo test -p onelock-sql --features mysql --test mysql --test conformance_mysql"
