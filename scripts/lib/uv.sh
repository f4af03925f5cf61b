# Finds uv, or installs it into .uv with the system's Python. Sourced by scripts/setup.

on_debian='Debian, Ubuntu, as root: apt-get install python3-venv'

say() { printf 'setup: %s\n' "$*" >&2; }

find_python() { # prints the first supported Python of this machine
    local name
    for name in python3 python3.13 python3.12 python3.11 python; do
        if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null
        then
            echo "$name"
            return
        fi
    done
    say "no Python 3.11 to 3.13 found: install one ($on_debian), or uv, which brings its own"
    exit 1
}

find_uv() { # prints a uv that runs; a shim on the path may have no program behind it
    local candidate
    for candidate in uv .uv/bin/uv; do
        if "$candidate" --version >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

install_uv() { # into .uv, as the system's pip refuses to install beside packages of the system
    local python
    python=$(find_python)
    say "uv is missing: installing it into .uv with pip"
    if "$python" -m venv --clear .uv >/dev/null 2>&1; then
        .uv/bin/python -m pip install --quiet --disable-pip-version-check uv
    elif "$python" -m pip --version >/dev/null 2>&1; then # a Python without ensurepip
        "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
            --upgrade --target .uv uv
    else
        rm -rf .uv # an incomplete environment
        say "$python has neither venv nor pip: install them ($on_debian), or uv; then run this again"
        exit 1
    fi
}
