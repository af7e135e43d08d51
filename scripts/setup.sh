#!/bin/sh
# Installs what a Debian machine lacks for the tests: what the build needs, and the servers they start. Elsewhere it says what is
# missing.
#   scripts/setup.sh          all of it
#   scripts/setup.sh build    what the build needs
set -eu

missing=
need() { # need PROGRAM PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || missing="$missing $2"
}
need cc gcc
need protoc protobuf-compiler
[ -e /usr/include/google/protobuf/descriptor.proto ] || missing="$missing libprotobuf-dev"
if [ "${1:-}" != build ]; then
    need redis-server redis-server
    need etcd etcd-server
    need etcdctl etcd-client
    need mariadbd mariadb-server
    need mariadb mariadb-client
    need psql postgresql-client
    need pgbouncer pgbouncer
    need javac default-jdk-headless
    need setpriv util-linux
    need ip iproute2
    /usr/bin/python3 -c 'import redis' 2>/dev/null || missing="$missing python3-redis"
    /usr/bin/python3 -c 'import kazoo' 2>/dev/null || missing="$missing python3-kazoo"
    [ -e /usr/share/java/curator-recipes.jar ] || missing="$missing libcurator-recipes-java"
    [ -e /usr/share/java/zookeeper.jar ] || missing="$missing zookeeper"
    ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
fi

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
install() { # install PACKAGE...
    # The packages would start their services; the tests start their own.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
        $sudo chmod 755 $policy
        trap '$sudo rm -f $policy' EXIT
    fi
    $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@"
}

if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "please install (Debian's names):$missing" >&2
        exit 1
    fi
    # shellcheck disable=SC2086
    install $missing
fi

[ "${1:-}" != build ] || exit 0

# The suite of Redis runs on Valkey, too, where the distribution has it: Debian 12 has it in its backports.
if ! command -v valkey-server >/dev/null 2>&1 && command -v apt-get >/dev/null 2>&1; then
    list=/etc/apt/sources.list.d/onelock-backports.list
    archive=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Codename: bookworm' | head -n 1)
    if grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release && [ -n "$archive" ] && [ ! -e $list ]; then
        echo "deb $archive bookworm-backports main" | $sudo tee $list >/dev/null
    fi
    if ! install valkey-server; then
        $sudo rm -f $list
        echo "valkey-server cannot be installed here: the suite runs on redis-server alone" >&2
    fi
fi
