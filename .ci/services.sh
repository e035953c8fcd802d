# shellcheck shell=bash
# Sourced by .ci/run with a scratch folder: sets CI_DATABASE_URL and CI_REDIS_URL to real servers.
# Redis: one of our own on a free port. Postgres: a server that already answers on this machine, or Debian's,
# started here, with a role of our own.
scratch="$1"

free_port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
answers() { "$python" -c 'import psycopg, sys; psycopg.connect(sys.argv[1], connect_timeout=3)' "$1" 2>/dev/null; }

redis_port="$(free_port)"
redis-server --daemonize yes --bind 127.0.0.1 --port "$redis_port" --save "" --appendonly no \
    --dir "$scratch" --pidfile "$scratch/redis.pid" >/dev/null
CI_REDIS_URL="redis://127.0.0.1:$redis_port/0"

CI_DATABASE_URL="postgres://postgres@127.0.0.1:5432/postgres"
if ! answers "$CI_DATABASE_URL"; then
    version="$(pg_lsclusters --no-header | awk 'NR == 1 {print $1}')"
    if [ -z "$version" ]; then
        version="$(find /usr/lib/postgresql -mindepth 1 -maxdepth 1 -printf '%f\n' | sort -n | tail -1)"
        pg_createcluster "$version" main >/dev/null
    fi
    pg_ctlcluster --skip-systemctl-redirect "$version" main start || true
    password="$("$python" -c 'import secrets; print(secrets.token_hex(16))')"
    port="$(pg_lsclusters --no-header | awk -v v="$version" '$1 == v {print $3; exit}')"
    su postgres -c "psql -p $port -qc \"DROP ROLE IF EXISTS ridgeline_ci\" \
        -c \"CREATE ROLE ridgeline_ci LOGIN SUPERUSER PASSWORD '$password'\""
    CI_DATABASE_URL="postgres://ridgeline_ci:$password@127.0.0.1:$port/postgres"
    answers "$CI_DATABASE_URL" || { echo "no Postgres to test against"; exit 1; }
fi
