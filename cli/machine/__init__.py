"""Commands about the machine that jobs run on."""
