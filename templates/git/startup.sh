#!/bin/sh
# Clones the repository into ~/project once. What is there already is never touched.
set -eu

project="$HOME/project"
if ! command -v git >/dev/null 2>&1; then
    echo "There is no git on this machine. Install it there."
    exit 1
fi
if [ -e "$project/.git" ]; then
    echo "The repository is here already, at $(git -C "$project" log -1 --format='%h %s' 2>/dev/null || echo 'its beginning')."
    exit 0
fi
if [ -n "$(ls -A "$project" 2>/dev/null)" ]; then
    echo "$project is not empty and no repository. Move its files away, then start the workspace again."
    exit 1
fi

case "${ROOKERY_PARAM_repository#file://}" in
    /*)
        if [ ! -e "${ROOKERY_PARAM_repository#file://}" ]; then
            echo "There is no ${ROOKERY_PARAM_repository#file://} in this workspace: it sees its own home and the machine's programs,"
            echo "no other folders. Give an address that git can reach, or work in the folder with the template host-folder."
            exit 1
        fi
        ;;
esac

# An address with credentials comes without them; the whole of it is behind this descriptor. Git keeps them in the
# workspace, so that fetching and pushing work later, too.
if [ -n "${ROOKERY_SECRETS_FD:-}" ]; then
    . "/dev/fd/$ROOKERY_SECRETS_FD"
fi
if [ -n "${ROOKERY_SECRET_repository:-}" ]; then
    git config --global credential.helper store
    printf 'url=%s\n\n' "$ROOKERY_SECRET_repository" | git credential approve
fi

set -- --no-hardlinks
case "${ROOKERY_PARAM_depth:-1}" in
    0) ;;
    *) set -- "$@" --depth "${ROOKERY_PARAM_depth:-1}" ;;
esac
if [ -n "${ROOKERY_PARAM_branch:-}" ]; then
    set -- "$@" --branch "$ROOKERY_PARAM_branch"
fi
# Beside it first: a clone that breaks leaves nothing that looks like a repository.
rm -rf "$project.clone"
echo "Cloning $ROOKERY_PARAM_repository"
git clone --quiet "$@" -- "$ROOKERY_PARAM_repository" "$project.clone" || {
    code=$?
    echo "The repository could not be cloned. Check the address and the access to it. An address in a private network"
    echo "or on the server itself can be reached only if an administrator has set net_allow_private."
    exit "$code"
}
rmdir "$project" 2>/dev/null || true
mv "$project.clone" "$project"
echo "Checked out $(git -C "$project" log -1 --format='%h %s' 2>/dev/null || echo 'an empty repository')."
