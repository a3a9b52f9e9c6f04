# The program knows its commands, and writes what fish needs.
federationctl completion fish | source
