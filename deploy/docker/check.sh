#!/bin/sh
# Runs an image as it should be run (read-only, without capabilities), with a tiny model of random weights, and asks it.
# Argument: the image. Needs docker and curl.
set -eu
image=$1
name=gradus-check-$$
key=check-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
url=http://127.0.0.1:18000
trap 'docker rm --force --volumes "$name" > /dev/null 2>&1 || true' EXIT

fail() {
    echo "$image: $1" >&2
    docker logs "$name" >&2 || true
    exit 1
}

# Without a key, it refuses to listen: a mistake in the settings, which has status 2.
status=0
timeout 60 docker run --rm --name "$name" --read-only --tmpfs /tmp "$image" --model random:tiny-llama > /dev/null 2>&1 \
    || status=$?
[ "$status" = 2 ] || fail "ended with status $status without an API key, not with 2"

docker run --detach --name "$name" --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
    --publish 127.0.0.1:18000:8000 --env "GRADUS_API_KEY=$key" "$image" --model random:tiny-llama > /dev/null

tries=0
until curl --silent --fail "$url/health" > /dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 120 ] || fail "was not ready within two minutes"
    sleep 1
done

[ "$(docker exec "$name" id -u)" = 10001 ] || fail "runs as another user than 10001"
status=$(curl --silent --output /dev/null --write-out '%{http_code}' --json '{"prompt": "a"}' "$url/generate")
[ "$status" = 401 ] || fail "answered a request without a key with $status"
curl --silent --fail --header "Authorization: Bearer $key" --json '{"prompt": "a", "max_tokens": 4}' "$url/generate" \
    | grep --quiet '"finish_reason"' || fail "did not answer"
curl --silent --fail --header "Authorization: Bearer $key" "$url/metrics" | grep --quiet '^gradus_ready{.*} 1' \
    || fail "did not show its metrics"

tries=0
until [ "$(docker inspect --format '{{.State.Health.Status}}' "$name")" = healthy ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || fail "has no healthy HEALTHCHECK"
    sleep 1
done

docker stop --time 60 "$name" > /dev/null
code=$(docker inspect --format '{{.State.ExitCode}}' "$name")
[ "$code" = 0 ] || fail "ended with status $code after SIGTERM"
echo "$image: ready, answers, refuses strangers, and drains"
