# Sourced by scripts that build everything: the program's features that the workspace is tested with. etcd is not in `full`,
# because its build needs protoc.
# shellcheck shell=sh disable=SC2034
features=onelock-cli/full,onelock-cli/etcd

begun=${begun:-$(date +%s)}
export begun
step() { printf '\n== %s (%s s)\n' "$*" $(($(date +%s) - begun)); "$@"; }
