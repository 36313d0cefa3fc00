# Commands find the project's virtual environment first.
if [ -d "$HOME/project/.venv/bin" ]; then
    PATH="$HOME/project/.venv/bin:$PATH"
    export PATH
fi
