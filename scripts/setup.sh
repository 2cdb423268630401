#!/usr/bin/env bash
# Makes this checkout ready to run: Python, Java, and .venv with the packages of requirements.lock.
# Safe to run at any time; returns at once when nothing has changed since the last run.
#
# PYTHON=/path/to/python3.12 chooses the interpreter. Java is found as Spark finds it: JAVA_HOME
# first, then PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv
readonly STAMP=$VENV/.headgate-setup

say() { printf 'setup: %s\n' "$*"; }
stop() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# --- the operating system's part: only root on a Debian-like system may install anything ----------

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_is_fresh=no
refresh_apt() {
    [ "$apt_is_fresh" = yes ] && return
    apt-get update -qq >/dev/null || return 1
    apt_is_fresh=yes
}

# Installs the first of the named packages that this release of the system has.
install_first_of() {
    can_install && refresh_apt || return 1
    local package
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            say "installing $package"
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
                "$package" >/dev/null && return
        fi
    done
    return 1
}

# --- Python -----------------------------------------------------------------------------------------

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

need_python() {
    if [ -z "${PYTHON:-}" ] && ! find_python >/dev/null; then
        install_first_of python3 || true
    fi
    python=$(find_python) || stop "Headgate needs Python 3.11 or newer and found none;" \
        "install one, or name it with PYTHON=/path/to/python3."
    if ! has_venv "$python"; then
        install_first_of python3-venv || true
        has_venv "$python" || stop "$python has no venv module; install it" \
            "(on Debian: apt-get install python3-venv) and run this again."
    fi
}

# --- Java -------------------------------------------------------------------------------------------

java_command() { if [ -n "${JAVA_HOME:-}" ]; then echo "$JAVA_HOME/bin/java"; else echo java; fi; }

# The feature release: 17 for "17.0.15", 8 for "1.8.0_402", 0 when there is no Java.
java_release() {
    local text
    text=$("$(java_command)" -version 2>&1) || { echo 0; return; }
    sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' <<<"$text" | grep -m1 . || echo 0
}

need_java() {
    [ "$(java_release)" -ge 17 ] && return
    if [ -z "${JAVA_HOME:-}" ]; then
        install_first_of openjdk-17-jre-headless openjdk-21-jre-headless || true
        [ "$(java_release)" -ge 17 ] && return
        stop "Spark needs Java 17 or newer and found none; install one" \
            "(on Debian: apt-get install openjdk-17-jre-headless) or point JAVA_HOME to it."
    fi
    stop "JAVA_HOME is $JAVA_HOME, which is not Java 17 or newer; unset it or point it to one."
}

# --- network namespaces, for the tests that run several hosts on one machine -------------------------

want_iproute() {
    [ -x /usr/sbin/ip ] || [ -x /sbin/ip ] || command -v ip >/dev/null && return
    install_first_of iproute2 || say "iproute2 is missing, so the tests marked 'cluster' are skipped."
}

# --- the environment --------------------------------------------------------------------------------

# Changes when the packages, the project or its place change (scripts in .venv hold their path).
fingerprint() {
    { pwd -P; cat requirements.lock pyproject.toml lab/pyproject.toml src/headgate/routing/kernels.c src/headgate/state/kernels.c "${BASH_SOURCE[0]}"; } | sha256sum
}

is_current() {
    [ -x $VENV/bin/headgate ] && [ -x $VENV/bin/headgate-lab ] && $VENV/bin/python -c '' 2>/dev/null &&
        [ "$(cat $STAMP 2>/dev/null)" = "$(fingerprint)" ]
}

# A .venv that was copied from elsewhere still writes to the place it came from.
is_usable() {
    [ -x $VENV/bin/python ] && is_new_enough $VENV/bin/python &&
        grep -qF "$(pwd -P)/$VENV" $VENV/bin/activate 2>/dev/null
}

install_packages() {
    local pip=($VENV/bin/python -m pip --disable-pip-version-check --quiet)
    # The build tool first, from the lock too: nothing is fetched that the lock does not name.
    awk '/^[a-z]/ { wanted = /^setuptools==/ } wanted' requirements.lock > $VENV/build.lock
    "${pip[@]}" install --require-hashes -r $VENV/build.lock
    "${pip[@]}" install --require-hashes --no-build-isolation --use-pep517 -r requirements.lock
    "${pip[@]}" install --no-deps --no-build-isolation --no-index --editable . --editable lab
}

need_java
is_current && exit 0

need_python
want_iproute
is_usable || { say "making $VENV with $("$python" --version)"; "$python" -m venv --clear $VENV; }
say "installing the packages of requirements.lock (the first time takes one to three minutes)"
rm -f $STAMP
install_packages || stop "the packages could not be installed; the lines above say why" \
    "(the first set-up needs the network, later ones do not)."
fingerprint > $STAMP
say "ready: $($VENV/bin/python --version), Java $(java_release)"
