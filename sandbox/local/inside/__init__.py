"""The program that is process 1 of a local sandbox: starts its commands and ends them.

It runs inside, with nothing but Python's standard library and these files. It may use no other
module of Budwood, and it never knows what it runs.
"""
