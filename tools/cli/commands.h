/* commands.h - the subcommands of `tributary`; each gets its own argv and returns the exit status. */
#ifndef TRIB_TOOLS_CLI_COMMANDS_H
#define TRIB_TOOLS_CLI_COMMANDS_H

int run_command(int argc, char **argv);
int server_command(int argc, char **argv);
int coordinator_command(int argc, char **argv);
int bench_command(int argc, char **argv);
int info_command(int argc, char **argv);
int sim_command(int argc, char **argv);
int step_command(int argc, char **argv);
int trace_command(int argc, char **argv);
int replay_command(int argc, char **argv);
int tune_command(int argc, char **argv);

#endif
