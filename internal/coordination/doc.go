// Package coordination has the tests of both sides of the coordinated model together:
// members of package consumer/coordinated and coordinators of package broker/coordinator
// in virtual time. Neither of the two may import the other.
package coordination
