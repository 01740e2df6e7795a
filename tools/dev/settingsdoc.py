#!/usr/bin/env python3
"""Makes the table of variables in docs/operating.md from the table of settings, api/config/settings.c.

tools/dev/settingsdoc.py           writes it
tools/dev/settingsdoc.py --check   writes nothing; fails if docs/operating.md has not what would be written
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "operating.md"
HEAD = "| variable | default | range | meaning |\n| --- | --- | --- | --- |\n"
# Prints the rows; it is compiled with the table itself.
PRINTER = r"""
#include <stdio.h>
#include "api/config/settings.h"

static void print_initial(const trib_setting *setting)
{
    const bool is_word = setting->kind == TRIB_SETTING_TEXT || setting->kind == TRIB_SETTING_CHOICE ||
                         setting->kind == TRIB_SETTING_ROLES;
    const char *text = setting->initial_doc != NULL ? setting->initial_doc : setting->initial;
    const char *quote = is_word && text != NULL && text == setting->initial ? "`" : "";
    printf("%s%s%s", quote, text != NULL ? text : "none", quote);
}

static void print_range(const trib_setting *setting)
{
    static const char *const names[] = {
        [TRIB_SETTING_TEXT] = "text",   [TRIB_SETTING_BOOL] = "yes, no", [TRIB_SETTING_BYTES] = "bytes",
        [TRIB_SETTING_TIME] = "time",   [TRIB_SETTING_RATE] = "such as `10gbit`",
        [TRIB_SETTING_ROLES] = "`worker`, `server`, `coordinator`, several joined by `+`"};
    if (setting->range_doc != NULL) {
        printf("%s", setting->range_doc);
    } else if (setting->kind == TRIB_SETTING_CHOICE) {
        for (size_t i = 0; setting->words[i] != NULL; i++) {
            printf("%s`%s`", i > 0 ? ", " : "", setting->words[i]);
        }
    } else if (setting->kind == TRIB_SETTING_INT || setting->kind == TRIB_SETTING_UINT) {
        printf("%lld..%lld", (long long)setting->low, (long long)setting->high);
    } else {
        printf("%s", names[setting->kind]);
    }
}

int main(void)
{
    for (size_t i = 0; i < trib_settings_count; i++) {
        const trib_setting *setting = &trib_settings[i];
        if (setting->variable != NULL) {
            printf("| `%s`%s | ", setting->variable, setting->is_job_wide ? " [job]" : "");
            print_initial(setting);
            printf(" | ");
            print_range(setting);
            printf(" | %s |\n", setting->doc);
        }
    }
    return 0;
}
"""


def made_rows():
    with tempfile.TemporaryDirectory() as folder:
        printer = pathlib.Path(folder, "print.c")
        printer.write_text(PRINTER, encoding="utf-8")
        program = str(pathlib.Path(folder, "print"))
        compiler = os.environ.get("CC", "cc")
        subprocess.run(
            [
                compiler,
                "-std=gnu11",
                "-I",
                str(ROOT),
                "-w",
                "-o",
                program,
                str(printer),
                str(ROOT / "api/config/settings.c"),
            ],
            check=True,
        )
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    begin = page.find(HEAD)
    if begin < 0:
        print(f"settingsdoc: {PAGE} has no table that begins as the one of variables does", file=sys.stderr)
        return 1
    end = page.find("\n\n", begin) + 1
    made = page[:begin] + HEAD + made_rows() + page[end:]
    if options.check and made != page:
        print(
            f"settingsdoc: the variables in {PAGE} are not those of the code: run tools/dev/settingsdoc.py",
            file=sys.stderr,
        )
        return 1
    if not options.check:
        PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
