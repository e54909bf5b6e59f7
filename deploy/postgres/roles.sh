#!/bin/sh
# Runs once, when the database is made: an owner that migrates, and the role that every process uses (no owner, no superuser, no BYPASSRLS).
set -eu
psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" -v owner="$MASTHEAD_OWNER_PASSWORD" -v app="$MASTHEAD_APP_PASSWORD" <<'SQL'
CREATE ROLE masthead_owner LOGIN NOSUPERUSER PASSWORD :'owner';
CREATE ROLE masthead_app LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE PASSWORD :'app';
CREATE DATABASE masthead OWNER masthead_owner;
SQL
