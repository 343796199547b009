"""What ranks do at a hang: each rank describes itself, and pure functions group the ranks by
likeness and decide which one the others wait for. Workers, agents and the supervisor import this
package, which imports no torch."""
