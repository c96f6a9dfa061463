// Prompts that suit the model in the package, which continues Python code.

const PRESETS = [
  ["Find files", 'import os\nimport sys\n\n\ndef find_files(root, suffix):\n    """Yield the paths of files below root that end in suffix."""\n    for'],
  ["Read a file", 'def read_lines(path):\n    """Return the lines of a file."""\n'],
  ["A small class", "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"],
  ["Command line", "import argparse\n\n\ndef main():\n    parser = argparse.ArgumentParser()\n"],
  ["Unit test", "import unittest\n\n\nclass TestCase(unittest.TestCase):\n    def test_add(self):\n"],
  ["Plain English", "The quick brown fox"],
];

/** The menu of presets fills `prompt`. */
export function presets(menu, prompt) {
  menu.replaceChildren(...PRESETS.map(([name, text]) => new Option(name, text)));
  menu.addEventListener("change", () => (prompt.value = menu.value));
  prompt.value = PRESETS[0][1];
}
