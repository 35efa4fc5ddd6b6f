"""What the verbs' command lines share.

param_types     types of option values
verb_options    options of several verbs
verb            a command whose --help ends with examples
verb_group      a verb with sub-verbs
shell_complete  completion of runs, configs and files
working_folder  a current folder that has been deleted
"""
