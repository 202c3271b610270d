#!/bin/sh
# Makes the secrets of compose.yaml, each once: what exists stays. Argument: the folder that holds them.
#
#   server/keys.yaml           hashes of both keys, for the server
#   server/admin.key           your key: all routes
#   prometheus/prometheus.key  Prometheus's key: /metrics alone
#   grafana/password           the password of Grafana's user admin
set -eu
umask 077
folder=$1
mkdir -p "$folder/server" "$folder/prometheus" "$folder/grafana"
keys=$folder/server/keys.yaml
[ ! -e "$keys" ] || chown 0:0 "$keys" # `gradus keys` reads only a file of its own user, or root's

# make_key NAME ROLE FILE. A key whose first attempt was cut short is replaced: its text is nowhere.
make_key() {
    [ -s "$3" ] && return
    gradus keys remove "$1" --file "$keys" > /dev/null 2>&1 || true
    gradus keys add "$1" --role "$2" --file "$keys" > "$3"
}

make_key admin admin "$folder/server/admin.key"
make_key prometheus monitor "$folder/prometheus/prometheus.key"
[ -s "$folder/grafana/password" ] || python -c 'import secrets; print(secrets.token_urlsafe(24), end="")' > "$folder/grafana/password"

# Each service may read its own: the users of the three images.
chown -R 10001:10001 "$folder/server"
chown -R 65534:65534 "$folder/prometheus"
chown -R 472:0 "$folder/grafana"
