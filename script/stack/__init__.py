"""The whole of Masthead on one machine: what `script/demo` and the tests of several processes run."""
